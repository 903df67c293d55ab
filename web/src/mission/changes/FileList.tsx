import type { LineCount } from "../../api/contract";
import { plainText } from "../../format";

interface Props {
  files: readonly LineCount[];
  chosen: string;
  onChoose: (path: string) => void;
}

export function FileList({ files, chosen, onChoose }: Props) {
  return (
    <nav aria-label="Changed files" className="file-list">
      <ul>
        {files.map(({ path, added, removed }) => (
          <li key={path}>
            <button type="button" aria-current={path === chosen ? "true" : undefined} onClick={() => onChoose(path)}>
              <span className="mono wrap">{plainText(path)}</span>
              <span className="numbers small">
                {added === null && removed === null ? (
                  "binary"
                ) : (
                  <>
                    <span className="tone-good">+{added ?? 0}</span> <span className="tone-bad">−{removed ?? 0}</span>
                  </>
                )}
              </span>
            </button>
          </li>
        ))}
      </ul>
    </nav>
  );
}
