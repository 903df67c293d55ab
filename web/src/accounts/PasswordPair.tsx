import { TextField } from "../design/Field";
import { SHORTEST_PASSWORD } from "./accounts";

export interface Pair {
  password: string;
  again: string;
}

interface Props {
  value: Pair;
  onChange: (value: Pair) => void;
  problem: string;
}

/** Asks for a password twice, because the person cannot see what they type. */
export function PasswordPair({ value, onChange, problem }: Props) {
  return (
    <div className="form-grid">
      <TextField
        label="New password"
        type="password"
        autoComplete="new-password"
        hint={`At least ${SHORTEST_PASSWORD} characters.`}
        error={problem || undefined}
        value={value.password}
        onChange={(event) => onChange({ ...value, password: event.target.value })}
      />
      <TextField
        label="The same again"
        type="password"
        autoComplete="new-password"
        value={value.again}
        onChange={(event) => onChange({ ...value, again: event.target.value })}
      />
    </div>
  );
}
