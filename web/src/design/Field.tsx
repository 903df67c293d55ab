import { useId, type InputHTMLAttributes, type ReactNode, type TextareaHTMLAttributes } from "react";

interface Shape {
  label: string;
  hint?: string | undefined;
  error?: string | undefined;
}

function Frame({ id, label, hint, error, children }: Shape & { id: string; children: ReactNode }) {
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {children}
      {(error ?? hint) && (
        <p id={`${id}-hint`} className={error ? "small tone-bad" : "small soft"}>
          {error ?? hint}
        </p>
      )}
    </div>
  );
}

interface Suggesting extends Shape, InputHTMLAttributes<HTMLInputElement> {
  /** Suggested values; any other value can be typed too. */
  suggestions?: readonly string[];
}

export function TextField({ label, hint, error, suggestions, ...rest }: Suggesting) {
  const id = useId();
  const list = suggestions ? `${id}-list` : undefined;
  return (
    <Frame id={id} label={label} hint={hint} error={error}>
      <input id={id} className="input" list={list} aria-describedby={`${id}-hint`} aria-invalid={Boolean(error)} {...rest} />
      {suggestions && (
        <datalist id={list}>
          {suggestions.map((suggestion) => (
            <option key={suggestion} value={suggestion} />
          ))}
        </datalist>
      )}
    </Frame>
  );
}

export function TextArea({ label, hint, error, ...rest }: Shape & TextareaHTMLAttributes<HTMLTextAreaElement>) {
  const id = useId();
  return (
    <Frame id={id} label={label} hint={hint} error={error}>
      <textarea id={id} className="input" aria-describedby={`${id}-hint`} aria-invalid={Boolean(error)} {...rest} />
    </Frame>
  );
}

interface Choice extends Shape {
  value: string;
  onChange: (value: string) => void;
  options: readonly { value: string; label: string }[];
}

export function Select({ label, hint, error, value, onChange, options }: Choice) {
  const id = useId();
  return (
    <Frame id={id} label={label} hint={hint} error={error}>
      <select id={id} className="input" value={value} onChange={(event) => onChange(event.target.value)}>
        {options.map((option) => (
          <option key={option.value} value={option.value}>
            {option.label}
          </option>
        ))}
      </select>
    </Frame>
  );
}
