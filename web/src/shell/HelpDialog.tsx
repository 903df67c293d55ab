import { Kbd } from "../design/Badge";
import { Dialog } from "../design/Dialog";
import type { Command } from "./commands";

const LISTS = [
  { title: "Next, previous entry of a list", keys: "j k" },
  { title: "Open the entry", keys: "Enter" },
  { title: "Show or hide the tasks of a plan", keys: "x" },
  { title: "Close a dialog", keys: "Esc" },
];

export function HelpDialog({ commands, onClose }: { commands: readonly Command[]; onClose: () => void }) {
  const entries = [{ title: "Command palette", keys: "Ctrl+K" }, ...commands.filter(({ keys }) => keys), ...LISTS];
  return (
    <Dialog title="Keyboard" onClose={onClose}>
      <dl className="facts">
        {entries.map(({ title, keys }) => (
          <div key={title} className="help-entry">
            <dt>
              {keys.split(" ").map((key) => (
                <Kbd key={key}>{key}</Kbd>
              ))}
            </dt>
            <dd>{title}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
