"""The forms of suites: own directories, HumanEval, SWE-bench, Harbor."""
