import { Kbd } from "../../design/Badge";
import { Dialog } from "../../design/Dialog";

const KEYS = [
  ["a", "Accept the hunk, go on to the next open one"],
  ["r", "Reject it, go on"],
  ["c", "Comment on it"],
  ["u", "Undo the last decision"],
  ["j", "Next hunk"],
  ["k", "Previous hunk"],
  ["n", "Next file that is open"],
  ["A", "Accept the rest of the file"],
  ["f", "Finish the review"],
] as const;

export function ReviewHelp({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys of the review" onClose={onClose}>
      <dl className="facts">
        {KEYS.map(([key, title]) => (
          <div key={key} className="help-entry">
            <dt>
              <Kbd>{key}</Kbd>
            </dt>
            <dd>{title}</dd>
          </div>
        ))}
      </dl>
      <p className="small soft">Your decisions and comments are kept for you on the server, where colleagues see them. Hunks accepted before are folded in the next round.</p>
    </Dialog>
  );
}
