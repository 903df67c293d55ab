import { CopyCommand } from "../design/CopyCommand";

/** The commands that make sense now, to copy into a terminal. */
export function NextCommands({ commands }: { commands: readonly string[] }) {
  if (commands.length === 0) return null;
  return (
    <details className="small">
      <summary>Next on the command line</summary>
      <ul className="stack next">
        {commands.map((command) => (
          <li key={command} className="row">
            <CopyCommand command={command} />
          </li>
        ))}
      </ul>
    </details>
  );
}
