"""GitHub, GitLab, Gitea and Forgejo, and a directory of this machine, behind one contract."""
