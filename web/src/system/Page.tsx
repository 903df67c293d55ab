import { Scroll } from "../design/Scroll";
import type { ReactNode } from "react";
import { useTitle } from "../useTitle";

/** A page with a heading and its sections below each other. */
export function Page({ title, children }: { title: string; children: ReactNode }) {
  useTitle(title);
  return (
    <div className="stack page">
      <h1>{title}</h1>
      {children}
    </div>
  );
}

interface TableProps {
  caption: string;
  heads: readonly string[];
  rows: readonly (readonly ReactNode[])[];
  none: string;
  children?: ReactNode;
}

/** A table whose first column names the row; columns whose heading ends in `#` hold numbers. */
export function DataTable({ caption, heads, rows, none, children }: TableProps) {
  const numeric = heads.map((head) => (head.endsWith("#") ? "number" : "wrap"));
  return (
    <section className="card stack">
      <h2>{caption}</h2>
      {rows.length === 0 ? (
        <p className="soft">{none}</p>
      ) : (
        <Scroll label={caption}>
          <table className="table">
            <caption className="sr-only">{caption}</caption>
            <thead>
              <tr>
                {heads.map((head, column) => (
                  <th key={head} scope="col" className={numeric[column]}>
                    {head.replace(/ ?#$/, "")}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((cells, row) => (
                <tr key={row}>
                  {cells.map((cell, column) =>
                    column === 0 ? (
                      <th key={column} scope="row" className="wrap">
                        {cell}
                      </th>
                    ) : (
                      <td key={column} className={numeric[column]} data-head={heads[column]?.replace(/ ?#$/, "")}>
                        {cell}
                      </td>
                    ),
                  )}
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      {children}
    </section>
  );
}
