import { Button } from "../design/Button";
import { toast } from "../design/Toasts";

/** The commands that make sense now, to be copied into a terminal. */
export function NextCommands({ commands }: { commands: readonly string[] }) {
  if (commands.length === 0) return null;
  const copy = async (command: string) => {
    try {
      await navigator.clipboard.writeText(command);
      toast("Copied.");
    } catch {
      toast("The browser does not let this page copy. Select the text instead.", true);
    }
  };
  return (
    <details className="small">
      <summary>Next on the command line</summary>
      <ul className="stack next">
        {commands.map((command) => (
          <li key={command} className="row">
            <code className="wrap">{command}</code>
            <Button kind="quiet" aria-label={`Copy ${command}`} onClick={() => void copy(command)}>
              Copy
            </Button>
          </li>
        ))}
      </ul>
    </details>
  );
}
