import type { ReactNode } from "react";

/** A table that may be wider than the screen: it scrolls by keyboard too. */
export function TableScroll({ label, children }: { label: string; children: ReactNode }) {
  return (
    // Whoever has no pointer scrolls what has the focus.
    // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex
    <div className="table-scroll" role="region" aria-label={label} tabIndex={0}>
      {children}
    </div>
  );
}
