import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { ChoiceList, ListedChoice, ReplayedChoices } from "../api/contract";
import { listQuery } from "../api/queries";
import { Button } from "../design/Button";
import { ErrorState, Loaded } from "../design/states";
import { clock, money, percent, plainText } from "../format";
import { DataTable } from "../system/Page";
import { useNow } from "../useNow";
import { describeReplay, findChosen } from "./figures";

const HEADS = ["Time", "Mission", "Task", "Chosen", "Why", "Chance #", "Price #"];

/** The choices of the newest missions; learned ones with the chance and price of the chosen candidate. */
export function RecentChoices() {
  const now = useNow();
  return (
    <Loaded query={useQuery(listQuery<ChoiceList>("choices?limit=50"))} label="Loading recent choices">
      {({ choices }) => (
        <DataTable
          caption="Recent choices"
          heads={HEADS}
          rows={choices.map((choice) => [
            <time key="time" dateTime={choice.time} className="numbers">
              {clock(choice.time, now)}
            </time>,
            <MissionLink key="mission" choice={choice} />,
            plainText(choice.task),
            plainText(choice.chosen),
            plainText(choice.why),
            ...figuresOf(choice),
          ])}
          none="No choice of agent or model is recorded with its reasons."
        >
          <Replay />
        </DataTable>
      )}
    </Loaded>
  );
}

function figuresOf(choice: ListedChoice): string[] {
  const chosen = findChosen(choice.learned);
  if (chosen === null) return ["", ""];
  const isKnown = chosen.known_costs > 0 || chosen.price_usd === 0;
  return [percent(chosen.chance), isKnown ? money(chosen.price_usd) : `about ${money(chosen.price_usd)}, assumed`];
}

function MissionLink({ choice: { mission } }: { choice: ListedChoice }) {
  return (
    <Link to="/missions/$id/$tab" params={{ id: mission, tab: "choices" }} className="mono">
      {mission}
    </Link>
  );
}

function Replay() {
  const query = useQuery({ ...listQuery<ReplayedChoices>("choices/replay"), enabled: false });
  return (
    <div className="stack">
      <div className="row">
        <Button busy={query.isFetching} onClick={() => void query.refetch()}>
          Compute them again
        </Button>
        <span className="soft small">The learned choices of all missions, from their records.</span>
      </div>
      {query.error && <ErrorState error={query.error} />}
      <p role="status">{query.data && !query.isFetching && !query.error && describeReplay(query.data)}</p>
      {query.data && query.data.different.length > 0 && (
        <ul aria-label="Choices with other numbers">
          {query.data.different.map((choice) => (
            <li key={`${choice.mission} ${choice.line}`} className="wrap">
              <MissionLink choice={choice} /> {plainText(choice.chosen)}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
