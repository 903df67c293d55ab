"""Rules for what agents do: every action is judged allow, ask or deny before it happens."""
