#!/usr/bin/env python3
"""What of the chart is made of something else: the table of values in its README, of the comments in values.yaml; and its
dashboard and alerts, which are copies, since a chart can read no file outside its folder.

    helm/generate.py          write them
    helm/generate.py --check  say whether they are as they should be
"""

import pathlib
import re
import sys

CHART = pathlib.Path(__file__).resolve().parent / "innkeeper"
OBSERVABILITY = CHART.parents[1] / "deploy/observability"
COPIES = {"files/dashboard.json": "grafana/innkeeper.json", "files/alerts.yaml": "prometheus/rules.yaml"}
BEGIN = "<!-- values: made by helm/generate.py -->\n"
END = "<!-- end of values -->\n"
KEY = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):(?: (.*))?$")


def rows(text):
    """Each described value as (path, default, description)."""
    path, described, found = [], None, []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        stripped = line.strip()
        if stripped.startswith("# -- "):
            described = stripped[5:]
            continue
        match = KEY.match(line)
        if not match:
            continue
        depth = len(match[1]) // 2
        path = path[:depth] + [match[2]]
        if described is None:
            continue
        default = match[3] or block(lines[number + 1 :], len(match[1]))
        found.append((".".join(path), default, described))
        described = None
    return found


def block(lines, indent):
    """A default of several lines, on one."""
    inner = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        if line.strip() and not line.strip().startswith("#"):
            inner.append(line.strip())
    return "{" + ", ".join(inner) + "}"


def table(found):
    head = "| value | default | |\n|---|---|---|\n"
    escaped = lambda text: text.replace("|", "\\|")
    return head + "".join(f"| `{path}` | `{escaped(default)}` | {escaped(what)} |\n" for path, default, what in found)


def readme():
    """The README as it should be."""
    before, _, rest = (CHART / "README.md").read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table(rows((CHART / "values.yaml").read_text())) + END + after


def main():
    fresh = {CHART / "README.md": readme()}
    if OBSERVABILITY.is_dir():
        fresh |= {CHART / copy: (OBSERVABILITY / source).read_text() for copy, source in COPIES.items()}
    else:
        print(f"SKIPPED: {OBSERVABILITY} is not there, so the chart's copies of it are not looked at")
    for path, text in fresh.items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            sys.exit(f"{path} is stale: run helm/generate.py")


if __name__ == "__main__":
    main()
