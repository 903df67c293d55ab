import type { ReactNode } from "react";
import { ApiError } from "../api/client";
import { Button } from "./Button";
import { Icon } from "./Icon";

export function EmptyState({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="state">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function ErrorState({ error, retry }: { error: unknown; retry?: () => void }) {
  const hint = error instanceof ApiError ? error.hint : "";
  return (
    <div className="state" role="alert">
      <Icon name="warning" />
      <h2>{error instanceof Error ? error.message : "Something went wrong."}</h2>
      {hint && <p className="soft">{hint}</p>}
      {retry && <Button onClick={retry}>Try again</Button>}
    </div>
  );
}

export function Skeleton({ rows = 6, label }: { rows?: number; label: string }) {
  return (
    <div className="skeletons" role="status" aria-busy="true">
      <span className="sr-only">{label}</span>
      {Array.from({ length: rows }, (_, row) => (
        <div key={row} className="skeleton" />
      ))}
    </div>
  );
}

interface Load<T> {
  data: T | undefined;
  error: Error | null;
  refetch: () => unknown;
}

/** Shows the data of a query, or that it is loading, or its error. */
export function Loaded<T>({ query, label, children }: { query: Load<T>; label: string; children: (data: T) => ReactNode }) {
  if (query.data !== undefined) return <>{children(query.data)}</>;
  if (query.error) return <ErrorState error={query.error} retry={() => void query.refetch()} />;
  return <Skeleton label={label} />;
}
