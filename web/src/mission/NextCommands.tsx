import { Button } from "../design/Button";
import { copyText } from "../design/copyText";

/** The commands that make sense now, to copy into a terminal. */
export function NextCommands({ commands }: { commands: readonly string[] }) {
  if (commands.length === 0) return null;
  return (
    <details className="small">
      <summary>Next on the command line</summary>
      <ul className="stack next">
        {commands.map((command) => (
          <li key={command} className="row">
            <code className="wrap">{command}</code>
            <Button kind="quiet" aria-label={`Copy ${command}`} onClick={() => void copyText(command)}>
              Copy
            </Button>
          </li>
        ))}
      </ul>
    </details>
  );
}
