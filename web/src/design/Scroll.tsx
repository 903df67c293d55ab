import { useEffect, useRef, useState, type ReactNode } from "react";

/** Holds content that may be wider than the page; if it is, the keyboard can scroll it too. */
export function Scroll({ label, children }: { label: string; children: ReactNode }) {
  const place = useRef<HTMLDivElement>(null);
  const [wide, setWide] = useState(false);
  useEffect(() => {
    const box = place.current;
    if (!box) return;
    const observer = new ResizeObserver(() => setWide(box.scrollWidth > box.clientWidth));
    observer.observe(box);
    for (const child of box.children) observer.observe(child);
    return () => observer.disconnect();
  }, []);
  const reachable = wide ? { role: "region", "aria-label": label, tabIndex: 0 } : {};
  return (
    <div ref={place} className="table-scroll" {...reachable}>
      {children}
    </div>
  );
}
