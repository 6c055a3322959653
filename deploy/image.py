#!/usr/bin/env python3
"""The image of Innkeeper: the program, the few libraries that it is linked with, certificates, and nothing else. No shell, no
root, nothing that is written to.

    deploy/image.py build                  build the program, and write target/image/innkeeper-VERSION.tar, an OCI archive
    deploy/image.py build --programs DIR   the same with a program that is there already
    deploy/image.py rootfs ROOT PROGRAM    the root filesystem alone; the Dockerfile makes its image of it
    deploy/image.py archive NAME:TAG ROOT OUT.tar ENTRYPOINT...   an archive of any folder; for the test cluster

One program is in it: `innkeeper` is each of the services (`innkeeper node router|prefill|decode`) and the operator's tools.
The programs of the three services share nearly all of its code, and would each add its size again.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tomllib

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
USER = 65532
ENTRYPOINT = ["/usr/bin/innkeeper"]
# glibc looks names up by modules that no program is linked with; newer ones have them within, and keep the files.
LOOKED_UP = ("libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2")
CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")


def say(text):
    print(f"image: {text}", flush=True)


def fail(text):
    sys.exit(f"image: error: {text}")


def version():
    with open(REPOSITORY / "Cargo.toml", "rb") as file:
        return tomllib.load(file)["workspace"]["package"]["version"]


# === The root filesystem ===


def libraries(program):
    """What the program is linked with, as the loader finds it: path in the image to file."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True)
    if "not a dynamic executable" in told.stdout + told.stderr or "statically linked" in told.stdout:
        return {}
    if told.returncode != 0:
        fail(f"ldd does not take {program}: {told.stderr.strip() or told.stdout.strip()}")
    if "not found" in told.stdout:
        fail(f"{program} is linked with what is not here:\n{told.stdout}")
    found = {path: path for path in re.findall(r"(/\S+) \(0x", told.stdout)}
    libc = next((path for path in found if path.endswith("/libc.so.6")), None)
    if libc is None:
        return found
    for name in LOOKED_UP:
        path = os.path.join(os.path.dirname(libc), name)
        if os.path.exists(path):
            found[path] = path
    return found


def put(root, path, text, mode=0o644):
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(mode)


def take(root, path, source, mode=0o644):
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def rootfs(root, program, name="innkeeper"):
    """Fills an empty folder."""
    root = pathlib.Path(root)
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        fail(f"{root} is not empty")
    take(root, f"/usr/bin/{name}", program, 0o755)
    # Names of functions and lines are for debuggers; the tools of a build have them.
    subprocess.run(["strip", "--strip-all", root / "usr/bin" / name], check=True)
    for path, source in libraries(program).items():
        take(root, path, source, 0o755)
    if not CERTIFICATES.is_file():
        fail(f"there is no {CERTIFICATES}: install the package ca-certificates")
    take(root, str(CERTIFICATES), CERTIFICATES)
    put(root, "/etc/passwd", f"root:x:0:0:root:/root:/sbin/nologin\ninnkeeper:x:{USER}:{USER}:innkeeper:/tmp:/sbin/nologin\n")
    put(root, "/etc/group", f"root:x:0:\ninnkeeper:x:{USER}:\n")
    put(root, "/etc/nsswitch.conf", "hosts: files dns\n")
    for path in ("/tmp", "/var/cache/innkeeper", "/var/lib/innkeeper"):
        (root / path.lstrip("/")).mkdir(parents=True)
        # Whoever the container runs as: volumes are mounted there, and without one nothing else is in the container.
        (root / path.lstrip("/")).chmod(0o1777)
    return root


def bill(root):
    """What is in the image, as CycloneDX: the crates of the lock file, and the system's packages by their libraries."""
    with open(REPOSITORY / "Cargo.lock", "rb") as file:
        crates = tomllib.load(file)["package"]
    components = [
        {"type": "library", "name": one["name"], "version": one["version"], "purl": f"pkg:cargo/{one['name']}@{one['version']}"}
        for one in crates
    ]
    files = [path for path in root.rglob("*") if ".so" in path.name] + [root / str(CERTIFICATES).lstrip("/")]
    packages = {}
    for path in files:
        where = "/" + str(path.relative_to(root))
        for candidate in (where, os.path.realpath(where), "/usr" + where):
            told = subprocess.run(["dpkg-query", "--search", candidate], capture_output=True, text=True)
            if told.returncode == 0:
                name = told.stdout.split(":")[0]
                shown = subprocess.run(["dpkg-query", "--show", "--showformat=${Version}", name], capture_output=True, text=True)
                packages[name] = shown.stdout
                break
    components += [
        {"type": "library", "name": name, "version": its, "purl": f"pkg:deb/debian/{name}@{its}"} for name, its in sorted(packages.items())
    ]
    main = {"type": "application", "name": "innkeeper", "version": version()}
    return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": main}, "components": components}, indent=1)


# === The archive ===


def layer(root):
    """The folder as a tar that is the same whenever its files are: owners, times and order say nothing of this machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(pathlib.Path(root).rglob("*")):
            info = tar.gettarinfo(path, arcname=str(path.relative_to(root)))
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = 0
            info.mode = stat.S_IMODE(path.lstat().st_mode)
            # Two names of one file are written twice: links need the first to come first.
            if info.islnk():
                info.type, info.size, info.linkname = tarfile.REGTYPE, path.stat().st_size, ""
            if info.isreg():
                with open(path, "rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    return buffer.getvalue()


def digest(blob):
    return hashlib.sha256(blob).hexdigest()


def encoded(value):
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def archive(name, root, out, config, level=9):
    """Writes an OCI archive, which container runtimes import and registry tools push. Its compressed size."""
    tar = layer(root)
    packed = gzip.compress(tar, level, mtime=0)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    described = encoded({
        "architecture": machine,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest(tar)]},
        "history": [{"created_by": "deploy/image.py"}],
    })
    kind = "application/vnd.oci.image."
    described_as = lambda media, blob: {"mediaType": kind + media, "digest": "sha256:" + digest(blob), "size": len(blob)}
    manifest = encoded({
        "schemaVersion": 2,
        "mediaType": kind + "manifest.v1+json",
        "config": described_as("config.v1+json", described),
        "layers": [described_as("layer.v1.tar+gzip", packed)],
    })
    entry = described_as("manifest.v1+json", manifest) | {
        "platform": {"architecture": machine, "os": "linux"},
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1]},
    }
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": encoded({"schemaVersion": 2, "manifests": [entry]})}
    files |= {"blobs/sha256/" + digest(blob): blob for blob in (described, packed, manifest)}
    out = pathlib.Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_suffix(".part")
    with tarfile.open(unfinished, "w") as tar:
        for path, blob in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(blob)
            tar.addfile(info, io.BytesIO(blob))
    unfinished.rename(out)
    return len(packed)


def config():
    return {
        "User": f"{USER}:{USER}",
        "Entrypoint": ENTRYPOINT,
        "Cmd": ["--help"],
        "Env": ["PATH=/usr/bin", f"SSL_CERT_FILE={CERTIFICATES}", "INNKEEPER_CACHE=/var/cache/innkeeper"],
        "ExposedPorts": {"8080/tcp": {}},
        "WorkingDir": "/tmp",
        "Labels": {
            "org.opencontainers.image.title": "innkeeper",
            "org.opencontainers.image.version": version(),
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    }


def build(programs, name):
    if programs is None:
        say("building the program")
        target = os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")
        cargo = ["cargo", "build", "--locked", "--release", "--workspace", "--bins"]
        subprocess.run(cargo, cwd=REPOSITORY, check=True)
        programs = pathlib.Path(target) / "release"
    program = pathlib.Path(programs) / "innkeeper"
    if not program.is_file():
        fail(f"there is no {program}")
    folder = REPOSITORY / "target/image"
    root = folder / "rootfs"
    shutil.rmtree(root, ignore_errors=True)
    rootfs(root, program)
    put(root, "/usr/share/sbom/innkeeper.cdx.json", bill(root))
    out = folder / f"innkeeper-{version()}.tar"
    packed = archive(name or f"localhost/innkeeper:{version()}", root, out, config())
    size = (root / "usr/bin/innkeeper").stat().st_size
    shutil.rmtree(root)
    say(f"{out}: {packed / 1e6:.1f} MB compressed, the program {size / 1e6:.1f} MB stripped ({program.stat().st_size / 1e6:.1f} MB with symbols)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("build")
    one.add_argument("--programs", metavar="DIR", default=os.environ.get("INNKEEPER_PROGRAMS"))
    one.add_argument("--name", metavar="NAME:TAG")
    one = commands.add_parser("rootfs")
    one.add_argument("root")
    one.add_argument("program")
    one = commands.add_parser("archive")
    one.add_argument("name")
    one.add_argument("root")
    one.add_argument("out")
    one.add_argument("entrypoint", nargs="+")
    args = parser.parse_args()
    if args.command == "build":
        build(args.programs, args.name)
    elif args.command == "rootfs":
        root = rootfs(args.root, args.program, pathlib.Path(args.program).name)
        if pathlib.Path(args.program).name == "innkeeper":
            put(root, "/usr/share/sbom/innkeeper.cdx.json", bill(root))
    else:
        # It travels no further than to the nodes of a test cluster.
        archive(args.name, args.root, args.out, {"Entrypoint": args.entrypoint, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/"]}, level=1)


if __name__ == "__main__":
    main()
