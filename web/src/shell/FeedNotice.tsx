import { useEffect, useState } from "react";
import { Icon } from "../design/Icon";
import { useFeedState } from "../feed/hooks";

// A reconnection shorter than this is not worth a notice.
const GRACE_MS = 1500;

export function FeedNotice() {
  const lost = useFeedState() === "reconnecting";
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(lost), lost ? GRACE_MS : 0);
    return () => clearTimeout(timer);
  }, [lost]);
  return (
    <div className="feed-notice" role="status" aria-live="polite">
      {shown && (
        <p>
          <Icon name="running" spin /> Reconnecting… The page may be out of date until the server answers.
        </p>
      )}
    </div>
  );
}
