import { useInfiniteQuery } from "@tanstack/react-query";
import { accessQuery } from "../api/queries";
import { Button } from "../design/Button";
import { ErrorState, Loaded } from "../design/states";
import { clock, plainText } from "../format";
import { DataTable } from "../system/Page";

export function AccessLog() {
  const query = useInfiniteQuery(accessQuery);
  return (
    <Loaded query={query} label="Loading the access log">
      {({ pages }) => (
        <>
          <DataTable
            caption="Access log"
            heads={["Time", "Who", "Action", "What", "From", "Outcome"]}
            rows={pages
              .flatMap(({ entries }) => entries)
              .map((entry) => [
                clock(entry.time, 0),
                plainText(entry.actor) || "not logged in",
                entry.action,
                plainText(entry.subject),
                entry.address || "this machine",
                entry.outcome,
              ])}
            none="Nobody has logged in or changed an account yet."
          />
          {query.isFetchNextPageError && <ErrorState error={query.error} />}
          {query.hasNextPage && (
            <div>
              <Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
                Show earlier lines
              </Button>
            </div>
          )}
        </>
      )}
    </Loaded>
  );
}
