import { TextField } from "../design/Field";

interface Props {
  label: string;
  value: string;
  onChange: (code: string) => void;
  /** Only numbers of an app: recovery codes have letters, which a numeric keyboard lacks. */
  numeric?: boolean;
}

/** A field for a code of a second factor. */
export function CodeField({ label, value, onChange, numeric = false }: Props) {
  return (
    <TextField
      label={label}
      autoComplete="one-time-code"
      inputMode={numeric ? "numeric" : "text"}
      required
      value={value}
      onChange={(event) => onChange(event.target.value)}
    />
  );
}
