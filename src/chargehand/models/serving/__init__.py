"""Admission, answering and settlement of one client request."""
