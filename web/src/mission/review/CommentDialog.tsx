import { useState, type SyntheticEvent } from "react";
import { Button } from "../../design/Button";
import { Dialog } from "../../design/Dialog";
import { TextArea } from "../../design/Field";
import type { Unit } from "./units";

interface Props {
  unit: Unit;
  text: string;
  onSave: (text: string) => void;
  onClose: () => void;
}

export function CommentDialog({ unit, text, onSave, onClose }: Props) {
  const [written, setWritten] = useState(text);
  const save = (event: SyntheticEvent) => {
    event.preventDefault();
    onSave(written);
    onClose();
  };
  return (
    <Dialog title="Comment" onClose={onClose}>
      <form className="stack" onSubmit={save}>
        <TextArea
          label={`On ${unit.path}${unit.hunk.new_start > 0 ? `, line ${unit.hunk.new_start}` : ""}`}
          hint="The agent gets all comments in one message when you finish the review. Ctrl+Enter keeps it."
          rows={5}
          // eslint-disable-next-line jsx-a11y/no-autofocus
          autoFocus
          value={written}
          onChange={(event) => setWritten(event.target.value)}
          onKeyDown={(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && save(event)}
        />
        <div className="dialog-actions">
          <Button onClick={onClose}>Back</Button>
          <Button type="submit" kind="primary">
            Keep comment
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
