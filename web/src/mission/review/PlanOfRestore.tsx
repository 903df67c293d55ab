import type { UseQueryResult } from "@tanstack/react-query";
import type { RestoreDocument } from "../../api/contract";
import { Loaded } from "../../design/states";
import { count, plainText } from "../../format";

const ACTIONS: Record<string, string> = { restored: "as it was before", deleted: "goes", partly: "some hunks go", kept: "stays" };

/** The server's plan of a restore, path by path. */
export function PlanOfRestore({ plan, stale }: { plan: UseQueryResult<RestoreDocument>; stale: boolean }) {
  return (
    <Loaded query={plan} label="Computing the changes to take back">
      {({ plan: { paths } }) => {
        const changed = paths.filter(({ action }) => action !== "kept");
        return (
          <div className="stack" role="group" aria-label="What is taken back">
            {stale && (
              <p role="alert" className="card bad">
                The mission changed since this review was loaded. Close this dialog: the change is then loaded again.
              </p>
            )}
            <p>
              A new checkpoint takes this back from {count(changed.length, "file")}; nothing is lost, and <code>checkpoint undo</code> brings it back:
            </p>
            <ul className="small review-plan">
              {changed.map(({ path, action, hunks, why }) => (
                <li key={path} className="wrap">
                  <span className="mono">{plainText(path)}</span>: {ACTIONS[action] ?? action}
                  {hunks.length > 0 && ` (${hunks.filter(({ kept }) => !kept).length} of ${count(hunks.length, "change")})`}
                  {why && `; the file ${plainText(why)}`}
                </li>
              ))}
            </ul>
          </div>
        );
      }}
    </Loaded>
  );
}
