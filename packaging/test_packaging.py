"""Tests of what packages are made with."""

import io
import json
import tarfile
import unittest

import image
import licenses


class Archives(unittest.TestCase):
    def test_depend_on_their_files_alone(self):
        one = image.archive({"b/c": (b"c", 0o755), "a": (b"a", 0o644)}, ["host"], 7)
        two = image.archive({"a": (b"a", 0o644), "b/c": (b"c", 0o755)}, ["host"], 7)
        self.assertEqual(one, two)
        entries = tarfile.open(fileobj=io.BytesIO(one)).getmembers()
        found = [(entry.name, entry.mode, entry.mtime, entry.uid, entry.isdir()) for entry in entries]
        self.assertEqual(found, [("a", 0o644, 7, 0, False), ("b", 0o755, 7, 0, True), ("b/c", 0o755, 7, 0, False),
                                 ("host", 0o755, 7, 0, True)])

    def test_image_leads_from_index_to_layer(self):
        files = image.layout(b"layer", "arm64", "1.2.3", "abc", 0)

        def blob(digest):
            return files["blobs/" + digest.replace(":", "/")][0]

        listed = json.loads(files["index.json"][0])["manifests"][0]
        self.assertEqual(listed["platform"], {"architecture": "arm64", "os": "linux"})
        manifest = json.loads(blob(listed["digest"]))
        config = json.loads(blob(manifest["config"]["digest"]))
        self.assertEqual(config["config"]["Labels"]["org.opencontainers.image.revision"], "abc")
        self.assertEqual(config["created"], "1970-01-01T00:00:00Z")
        self.assertEqual(len(blob(manifest["layers"][0]["digest"])), manifest["layers"][0]["size"])


class Licences(unittest.TestCase):
    def test_expressions(self):
        allowed = {"MIT", "ISC"}
        for expression, answer in [("MIT", True), ("GPL-3.0", False), ("GPL-3.0 OR MIT", True), ("GPL-3.0 AND MIT", False),
                                   ("(GPL-3.0 OR MIT) AND ISC", True), ("ISC WITH x OR GPL-3.0", False), ("", False)]:
            self.assertEqual(licenses.is_allowed(expression, allowed), answer, expression)

    def test_a_licence_that_nobody_agreed_to_is_a_fault(self):
        package = {"name": "a", "version": "1", "license": "GPL-3.0"}
        with self.assertRaises(licenses.Fault):
            licenses.check(package, {"allow": ["MIT"], "exceptions": []})
        licenses.check(package, {"allow": ["MIT"], "exceptions": [{"allow": ["GPL-3.0"], "crate": "a"}]})

    def test_a_crate_without_a_text_is_a_fault(self):
        package = {"name": "a", "version": "1", "license": "ISC", "manifest_path": "/nonexistent/Cargo.toml"}
        with self.assertRaises((licenses.Fault, OSError)):
            licenses.texts(package)


if __name__ == "__main__":
    unittest.main()
