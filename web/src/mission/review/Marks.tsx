import type { ReviewMark, ReviewReason } from "../../api/contract";
import { Icon } from "../../design/Icon";
import { plainText } from "../../format";

/** Findings of inspection and failed checks, except those already listed among the reasons of the file. */
export function Marks({ marks, said = [] }: { marks: readonly ReviewMark[]; said?: readonly ReviewReason[] }) {
  const shown = marks.filter(({ message }) => !said.some((reason) => reason.message === message));
  if (shown.length === 0) return null;
  return (
    <ul className="small review-marks" aria-label="Findings of checks and inspection">
      {shown.map((mark, index) => (
        <li key={index} className={mark.severity === "info" ? "soft wrap" : "tone-bad wrap"}>
          <Icon name="warning" /> {mark.line !== null && `line ${mark.line}, `}
          {mark.source === "check" ? `check ${plainText(mark.code)}` : mark.code.replaceAll("_", " ")}: {plainText(mark.message)}
        </li>
      ))}
    </ul>
  );
}
