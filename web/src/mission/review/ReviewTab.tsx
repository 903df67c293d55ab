import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import type { ChangeReview, MissionDetails } from "../../api/contract";
import { reviewQuery } from "../../api/queries";
import { EmptyState, Loaded } from "../../design/states";
import { useNarrow } from "../../useNarrow";
import { readStored, writeStored } from "../../storage";
import { Colleagues } from "./Colleagues";
import { CommentDialog } from "./CommentDialog";
import { FileCard } from "./FileCard";
import { FinishDialog } from "./FinishDialog";
import { ReviewBar } from "./ReviewBar";
import { ReviewFiles } from "./ReviewFiles";
import { ReviewHelp } from "./ReviewHelp";
import { orderFiles } from "./units";
import { useReview } from "./useReview";
import { useReviewKeys } from "./useReviewKeys";
import "../changes/changes.css";
import "./review.css";

const LAYOUT = "review-layout";
export type Shown = "comment" | "finish" | "help" | null;

export default function ReviewTab({ mission }: { mission: MissionDetails }) {
  return (
    <Loaded query={useQuery(reviewQuery(mission.mission))} label="Loading the change">
      {(review) =>
        review.files.length === 0 ? <EmptyState title="It changed nothing." /> : <Review mission={mission} review={review} />
      }
    </Loaded>
  );
}

function Review({ mission, review }: { mission: MissionDetails; review: ChangeReview }) {
  const files = useMemo(() => orderFiles(review.files), [review.files]);
  const { units, state, unit, progress, act } = useReview(mission.mission, review.tree, files);
  const [shown, setShown] = useState<Shown>(null);
  const [split, setSplit] = useState(() => readStored(LAYOUT) === "split");
  const narrow = useNarrow();
  useReviewKeys(act, setShown);
  const file = files.find(({ path }) => path === unit?.path);
  const close = () => setShown(null);
  const choose = (wide: boolean) => {
    setSplit(wide);
    writeStored(LAYOUT, wide ? "split" : null);
  };
  return (
    <div className="stack review">
      <ReviewBar review={review} progress={progress} split={split} onSplit={narrow ? undefined : choose} onShow={setShown} />
      <Colleagues mission={mission.mission} hunk={unit?.id ?? null} />
      <div className="changes">
        <ReviewFiles files={files} state={state} chosen={file?.path} onChoose={(id) => act({ type: "go", id })} />
        {file && (
          <FileCard
            key={file.path}
            mission={mission}
            review={review}
            file={file}
            files={files}
            state={state}
            at={unit?.id ?? null}
            split={split && !narrow}
            act={act}
            onComment={() => setShown("comment")}
          />
        )}
      </div>
      {shown === "comment" && unit && (
        <CommentDialog unit={unit} text={state.comments[unit.id] ?? ""} onClose={close} onSave={(text) => act({ type: "comment", id: unit.id, text })} />
      )}
      {shown === "help" && <ReviewHelp onClose={close} />}
      {shown === "finish" && <FinishDialog mission={mission} review={review} files={files} units={units} state={state} act={act} onClose={close} />}
    </div>
  );
}
