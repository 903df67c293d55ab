/** Line icons of 16 px. An icon never appears without a word, next to it or in its control's label. */

const PATHS = {
  board: "M2.5 3.5h11M2.5 8h11M2.5 12.5h7",
  agent: "M4 6.5h8v6H4zM8 6.5v-3M6.3 9.3h.01M9.7 9.3h.01M2 9v2M14 9v2",
  folder: "M2 4.5h4l1.5 1.5H14v7H2z",
  system: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  chart: "M2.5 2.5v11h11M5.5 11V8M8.5 11V5M11.5 11V7",
  settings: "M3 4.5h6M12 4.5h1M3 11.5h1M7 11.5h6M10.5 3v3M5.5 10v3",
  person: "M8 2.5a2.7 2.7 0 1 1 0 5.4 2.7 2.7 0 0 1 0-5.4M3 13.5c.5-2.9 2.3-4 5-4s4.5 1.1 5 4",
  planned: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11",
  running: "M8 2.5a5.5 5.5 0 1 1-5.5 5.5",
  waiting: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11M8 5.5v3M8 10.8h.01",
  paused: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11M6.5 6v4M9.5 6v4",
  promoted: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11M5.6 8.2l1.7 1.7 3.2-3.6",
  failed: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11M6 6l4 4M10 6l-4 4",
  refused: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11M4.3 4.3l7.4 7.4",
  undone: "M6 4L3 7l3 3M3 7h6a4 4 0 0 1 0 8H7",
  plus: "M8 3v10M3 8h10",
  leave: "M6.5 3H3v10h3.5M9.5 5l3 3-3 3M12.5 8H6",
  search: "M7 3a4 4 0 1 1 0 8 4 4 0 0 1 0-8M10 10l3.5 3.5",
  close: "M4 4l8 8M12 4l-8 8",
  chevron: "M6 4l4 4-4 4",
  moon: "M13 9.5A5.5 5.5 0 1 1 6.5 3a4.5 4.5 0 0 0 6.5 6.5",
  sun: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6M8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9",
  help: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11M6.4 6.3c.2-1 3.2-1.2 3.2.5 0 1.1-1.6 1.1-1.6 2.2M8 11h.01",
  warning: "M8 2.5l6 10.5H2zM8 6.5v3M8 11.2h.01",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  document: "M4 2.5h5l3 3v8H4zM9 2.5v3h3",
  fork: "M5 3v4a3 3 0 0 0 3 3v3M11 3v4a3 3 0 0 1-3 3",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, spin = false }: { name: IconName; spin?: boolean }) {
  return (
    <svg className={spin ? "icon-svg spin" : "icon-svg"} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path
        d={PATHS[name]}
        fill="none"
        stroke="currentColor"
        strokeWidth="1.5"
        strokeLinecap="round"
        strokeLinejoin="round"
      />
    </svg>
  );
}
