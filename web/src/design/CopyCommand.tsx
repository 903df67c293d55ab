import { Button } from "./Button";
import { copyText } from "./copyText";

/** A command to run in a terminal, with a button that copies it. */
export function CopyCommand({ command }: { command: string }) {
  return (
    <>
      <code className="wrap">{command}</code>
      <Button kind="quiet" aria-label={`Copy ${command}`} onClick={() => void copyText(command)}>
        Copy
      </Button>
    </>
  );
}
