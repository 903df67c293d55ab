"""Rules for agents' actions: every action is judged allow, ask or deny before it happens."""
