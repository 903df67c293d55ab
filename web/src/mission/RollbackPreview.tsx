import { useQuery } from "@tanstack/react-query";
import { rollbackQuery } from "../api/queries";
import { Loaded } from "../design/states";
import { count } from "../format";

export function RollbackPreview({ mission, branch }: { mission: string; branch: string | null }) {
  return (
    <Loaded query={useQuery(rollbackQuery(mission))} label="Computing the changes">
      {({ plan, ref }) => (
        <details open={plan.paths.length <= 8}>
          <summary>
            {count(plan.paths.length, "file")} on <span className="mono">{branch ?? ref ?? "no branch"}</span>
          </summary>
          <ul className="mono small">
            {plan.paths.map(({ path, action }) => (
              <li key={path} className="wrap">
                {action} {path}
              </li>
            ))}
          </ul>
        </details>
      )}
    </Loaded>
  );
}
