import { useMutation } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { post } from "../api/client";
import type { AuditView } from "../api/contract";
import { Badge } from "../design/Badge";
import { Button } from "../design/Button";
import { ErrorState } from "../design/states";
import { count } from "../format";

export function AuditCard() {
  const verify = useMutation({ mutationFn: () => post<AuditView>("/audit/verify") });
  return (
    <section className="card stack">
      <h2>Log</h2>
      <p className="soft">Every line is chained to the one before it, and heads are signed. A check reads them all.</p>
      <div>
        <Button busy={verify.isPending} onClick={() => verify.mutate()}>
          Check the log
        </Button>
      </div>
      <div role="status">{verify.data && <Result view={verify.data} />}</div>
      {verify.error && <ErrorState error={verify.error} />}
    </section>
  );
}

function Result({ view }: { view: AuditView }) {
  return (
    <div className="stack">
      <p className="row">
        <Badge tone={view.ok ? "good" : "bad"} icon={view.ok ? "promoted" : "failed"}>
          {view.ok ? "Intact" : "Not as it was written"}
        </Badge>
        {count(view.events, "event")} in {count(view.missions, "mission")}, {count(view.signed_heads, "signed head")}
      </p>
      <ul>
        {view.problems.map((problem) => (
          <li key={`${problem.mission} ${problem.seq ?? ""} ${problem.kind}`} className="wrap">
            <Link to="/missions/$id" params={{ id: problem.mission }}>
              {problem.mission}
            </Link>
            {problem.seq !== null && ` line ${problem.seq}`}: {problem.message}
          </li>
        ))}
      </ul>
    </div>
  );
}
