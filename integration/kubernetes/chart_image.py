"""The image that the chart runs."""

import gzip
import hashlib
import json
import os
import pathlib
import subprocess
import tarfile
import tempfile

from chart import ROOT
from chart_case import PROGRAM, Case, meta


class Image(Case):
    """The image: what is in it, that it runs, and that the same files make the same image."""

    def root(self, folder):
        root = pathlib.Path(folder) / "rootfs"
        subprocess.run([str(ROOT / "deploy/image.py"), "rootfs", str(root), PROGRAM], check=True, timeout=120)
        return root

    def test_the_program_runs_with_what_is_in_it_and_nothing_else_does(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            root = self.root(folder)
            runnable = {path.name for path in root.rglob("*") if path.is_file() and os.access(path, os.X_OK) and ".so" not in path.name}
            self.assertEqual(runnable, {"innkeeper"}, "no shell, no package manager")
            self.assertTrue((root / "etc/ssl/certs/ca-certificates.crt").stat().st_size > 10_000)
            components = json.loads((root / "usr/share/sbom/innkeeper.cdx.json").read_text())["components"]
            self.assertTrue({"tokio", "tonic"} <= {one["name"] for one in components})
            if os.geteuid() != 0:
                print("SKIPPED: only root can run a program in another root folder")
                return
            inside = lambda: (os.chroot(root), os.chdir("/"), os.setgid(65532), os.setuid(65532)) and None
            command = ["/usr/bin/innkeeper", "--version"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={}, preexec_fn=inside)
            self.assertEqual(done.stdout.strip(), f"innkeeper {meta()['appVersion']}", done.stderr)

    def test_the_same_files_are_the_same_image(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder) / "root"
            (root / "etc").mkdir(parents=True)
            (root / "etc/a").write_text("a")
            made = []
            for number in range(2):
                out = pathlib.Path(folder) / f"{number}.tar"
                subprocess.run([str(ROOT / "deploy/image.py"), "archive", "localhost/a:1", str(root), str(out), "/a"], check=True)
                made.append(out.read_bytes())
                os.utime(root / "etc/a", (1, 1))
            self.assertEqual(*made)
            with tarfile.open(pathlib.Path(folder) / "0.tar") as tar:
                read = lambda name: tar.extractfile(name).read()
                blob = lambda one: read("blobs/" + one["digest"].replace(":", "/"))
                (entry,) = json.loads(read("index.json"))["manifests"]
                manifest = json.loads(blob(entry))
                for one in (manifest["config"], *manifest["layers"]):
                    self.assertEqual("sha256:" + hashlib.sha256(blob(one)).hexdigest(), one["digest"])
                    self.assertEqual(len(blob(one)), one["size"])
                layer = gzip.decompress(blob(manifest["layers"][0]))
                self.assertEqual(json.loads(blob(manifest["config"]))["rootfs"]["diff_ids"], ["sha256:" + hashlib.sha256(layer).hexdigest()])
