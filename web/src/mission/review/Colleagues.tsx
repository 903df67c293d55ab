import { useQuery } from "@tanstack/react-query";
import { reviewsQuery, sessionQuery } from "../../api/queries";
import { count } from "../../format";

/** Other reviewers' decisions so far, and their comments on the current hunk. */
export function Colleagues({ mission, hunk }: { mission: string; hunk: string | null }) {
  const own = useQuery(sessionQuery).data?.user;
  const others = (useQuery(reviewsQuery(mission)).data?.reviews ?? []).filter(({ user }) => user !== own);
  return others.map(({ user, decided, comments }) => {
    const here = hunk === null ? [] : [decided[hunk], comments[hunk]].filter(Boolean);
    return (
      <p key={user} className="small soft wrap">
        {user} decided {count(Object.keys(decided).length, "hunk")}
        {here.length > 0 && `; this one: ${here.join(", ")}`}
      </p>
    );
  });
}
