import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { post } from "../api/client";
import type { AlertsDocument, AlertTrial } from "../api/contract";
import { listQuery } from "../api/queries";
import { Badge } from "../design/Badge";
import { Button } from "../design/Button";
import { Loaded } from "../design/states";
import { useCanAct } from "../mission/useCanAct";
import { useNow } from "../useNow";
import { alertRows, trialText, watchNotice } from "./alerts";
import { DataTable } from "./Page";

// The server checks every ten seconds.
const LOOK_MS = 10_000;

export function AlertsCard() {
  const query = useQuery({ ...listQuery<AlertsDocument>("alerts"), refetchInterval: LOOK_MS });
  return (
    <Loaded query={query} label="Loading alerts">
      {(alerts) => <Alerts alerts={alerts} />}
    </Loaded>
  );
}

function Alerts({ alerts }: { alerts: AlertsDocument }) {
  const now = useNow();
  const notice = watchNotice(alerts, now);
  const canAct = useCanAct();
  return (
      <DataTable
        caption="Alerts"
        heads={["What", "State", "When", "Times #"]}
        rows={alertRows(alerts, now).map((row) => [
          row.text,
          <Badge key="state" tone={row.raised ? "bad" : "quiet"} icon={row.raised ? "warning" : "promoted"}>
            {row.raised ? "Raised" : "Over"}
          </Badge>,
          row.when,
          row.count,
        ])}
        none="No alert is raised now, or was before."
      >
        {notice && <p className="soft small wrap">{notice}</p>}
        {canAct && <Trial />}
      </DataTable>
  );
}

function Trial() {
  const client = useQueryClient();
  const trial = useMutation({
    mutationFn: () => post<AlertTrial>("/alerts/test"),
    // A channel that delivers again no longer counts as failing.
    onSettled: () => client.invalidateQueries({ queryKey: ["alerts"] }),
  });
  const said = trial.data ? trialText(trial.data) : trial.error?.message;
  return (
    <div className="row">
      <Button busy={trial.isPending} onClick={() => trial.mutate()}>
        Send a trial notice
      </Button>
      <p className="small wrap" role="status">
        {!trial.isPending && said}
      </p>
    </div>
  );
}
