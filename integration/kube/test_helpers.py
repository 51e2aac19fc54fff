"""Tests of what needs no cluster."""

import os
import tempfile
import unittest

import api
import host
import part
import pki


class Until(unittest.TestCase):
    def test_returns_the_first_answer(self):
        answers = iter([None, 0, "there"])
        self.assertEqual(api.until("it", lambda: next(answers), every=0), "there")

    def test_asks_again_after_a_failure(self):
        answers = iter([OSError("refused"), api.ApiError("GET", "/", 503, "{}"), "there"])

        def condition():
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer
        self.assertEqual(api.until("it", condition, every=0), "there")

    def test_says_what_was_last(self):
        with self.assertRaisesRegex(TimeoutError, "for it; last: None"):
            api.until("it", lambda: None, seconds=0)


class Errors(unittest.TestCase):
    def test_message_of_a_status(self):
        error = api.ApiError("GET", "/x", 404, '{"reason": "NotFound", "message": "no such x"}')
        self.assertEqual((error.code, error.reason, str(error)), (404, "NotFound", "GET /x: 404 no such x"))

    def test_message_without_a_status(self):
        self.assertEqual(str(api.ApiError("GET", "/x", 500, "oops")), "GET /x: 500 oops")


class Certificates(unittest.TestCase):
    def test_subject(self):
        self.assertEqual(pki.subject("system:node:n", ["system:nodes"]), "/O=system:nodes/CN=system:node:n")


class Parts(unittest.TestCase):
    def test_ends_before_it_is_ready(self):
        with tempfile.TemporaryDirectory() as folder:
            one = part.Part("one", ["false"], os.path.join(folder, "log"), lambda: False)
            with self.assertRaisesRegex(RuntimeError, "one ended with 1"):
                one.start()

    def test_killed_and_started_again(self):
        with tempfile.TemporaryDirectory() as folder:
            one = part.Part("one", ["sleep", "60"], os.path.join(folder, "log"), lambda: True)
            one.start()
            first = one.process.pid
            one.restart()
            self.assertNotEqual(one.process.pid, first)
            one.stop()
            self.assertFalse(one.is_running())


class Traces(unittest.TestCase):
    def test_a_setting_that_changed_is_named(self):
        before = host.traces()
        changed = {line.replace("kernel/panic = ", "kernel/panic = 1") for line in before}
        self.assertTrue(any("kernel/panic" in line for line in before - changed))


if __name__ == "__main__":
    unittest.main()
