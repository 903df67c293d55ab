import { useState } from "react";
import { Icon } from "../design/Icon";
import { useFeedBatches } from "../feed/hooks";
import { plainText } from "../format";

/** Who answered a question while one looked at it, and what: it may have been another person, or the clock. */
export function SettledQuestion({ mission }: { mission: string }) {
  const [settled, setSettled] = useState("");
  useFeedBatches(({ events }) => {
    const last = events.findLast((event) => event.mission === mission && /^question\.(answered|expired)$/.test(event.type));
    if (last) setSettled(last.text);
  });
  return (
    <div role="status">
      {settled && (
        <p className="card wrap">
          <Icon name="promoted" /> {plainText(settled)}
        </p>
      )}
    </div>
  );
}
