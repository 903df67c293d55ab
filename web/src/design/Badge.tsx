import type { ReactNode } from "react";
import { Icon, type IconName } from "./Icon";

export type Tone = "good" | "bad" | "warn" | "info" | "quiet";

export function Badge({ tone, icon, children }: { tone: Tone; icon: IconName; children: ReactNode }) {
  return (
    <span className={`badge ${tone}`}>
      <Icon name={icon} spin={icon === "running"} />
      {children}
    </span>
  );
}

export function Kbd({ children }: { children: string }) {
  return <kbd className="kbd">{children}</kbd>;
}
