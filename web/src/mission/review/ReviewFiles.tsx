import type { ReviewFile } from "../../api/contract";
import { Icon } from "../../design/Icon";
import { plainText } from "../../format";
import type { Decisions } from "./decisions";

interface Props {
  files: readonly ReviewFile[];
  state: Decisions;
  chosen: string | undefined;
  onChoose: (hunk: string) => void;
}

/** All files in reading order, each with its progress. */
export function ReviewFiles({ files, state, chosen, onChoose }: Props) {
  return (
    <nav aria-label="Changed files, the riskiest first" className="file-list">
      <ul>
        {files.map((file) => {
          const { path, hunks, risk } = file;
          const left = hunks.filter(({ id }) => !state.decided[id]).length;
          const rejected = hunks.some(({ id }) => state.decided[id] === "rejected");
          const first = hunks.find(({ id }) => !state.decided[id]) ?? hunks[0];
          return (
            <li key={path}>
              <button type="button" aria-current={path === chosen ? "true" : undefined} onClick={() => first && onChoose(first.id)}>
                <span className={left === 0 ? "mono wrap soft" : "mono wrap"}>{plainText(path)}</span>
                <span className="numbers small review-left">
                  {risk >= 0.5 && <RiskSign />}
                  {left > 0 ? (
                    <>
                      {hunks.length - left}/{hunks.length}
                    </>
                  ) : (
                    <>
                      <Icon name={rejected ? "undone" : "promoted"} />
                      <span className="sr-only">{rejected ? "decided, with something rejected" : "accepted"}</span>
                    </>
                  )}
                </span>
              </button>
            </li>
          );
        })}
      </ul>
    </nav>
  );
}

function RiskSign() {
  return (
    <span className="tone-warn">
      <Icon name="warning" />
      <span className="sr-only">risky</span>
    </span>
  );
}
