import { useState } from "react";
import { Icon } from "../design/Icon";
import { useFeedBatches } from "../feed/hooks";
import { plainText } from "../format";

/** Shows who settled a question while the user looked at it, and how: another person, or a timeout. */
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
