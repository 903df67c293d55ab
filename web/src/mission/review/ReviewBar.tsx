import type { ChangeReview } from "../../api/contract";
import { Badge, type Tone } from "../../design/Badge";
import { Button } from "../../design/Button";
import type { IconName } from "../../design/Icon";
import { count, plainText } from "../../format";
import type { Progress } from "./decisions";
import type { Shown } from "./ReviewTab";

interface Props {
  review: ChangeReview;
  progress: Progress;
  split: boolean;
  onSplit: ((split: boolean) => void) | undefined;
  onShow: (what: Shown) => void;
}

const VERDICTS: Readonly<Record<string, readonly [Tone, IconName]>> = { green: ["good", "promoted"], red: ["bad", "failed"] };

export function ReviewBar({ review, progress: { total, decided, rejected, comments }, split, onSplit, onShow }: Props) {
  const [tone, icon] = VERDICTS[review.verdict ?? ""] ?? ["warn", "waiting"];
  return (
    <div className="review-bar">
      <div className="row">
        <Badge tone={tone} icon={icon}>
          {review.verdict === null ? "Not judged yet" : `Checks: ${review.verdict}`}
        </Badge>
        <p role="status" className="numbers">
          <strong>
            {decided} of {count(total, "hunk")}
          </strong>
          {rejected.length > 0 && `, ${rejected.length} rejected`}
          {comments > 0 && `, ${count(comments, "comment")}`}
        </p>
        <progress className="review-progress" max={Math.max(total, 1)} value={decided} aria-label="Hunks decided" />
        {onSplit && (
          <button type="button" className="chip" aria-pressed={split} onClick={() => onSplit(!split)}>
            Side by side
          </button>
        )}
        <Button kind="quiet" icon="help" aria-label="Keys of the review" onClick={() => onShow("help")} />
        <Button kind={decided === total ? "primary" : "plain"} onClick={() => onShow("finish")}>
          Finish review
        </Button>
      </div>
      {review.notes.map((note) => (
        <p key={note} className="small soft wrap">
          {plainText(note)}
        </p>
      ))}
    </div>
  );
}
