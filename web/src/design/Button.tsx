import type { ButtonHTMLAttributes } from "react";
import { Icon, type IconName } from "./Icon";

interface Props extends ButtonHTMLAttributes<HTMLButtonElement> {
  kind?: "plain" | "primary" | "danger" | "quiet";
  icon?: IconName;
  /** Shows that its work is in progress, and ignores clicks meanwhile. */
  busy?: boolean;
}

export function Button({ kind = "plain", icon, busy = false, className = "", children, disabled, ...rest }: Props) {
  const classes = ["button", kind === "plain" ? "" : kind, children ? "" : "icon", className];
  return (
    <button type="button" className={classes.filter(Boolean).join(" ")} disabled={disabled || busy} aria-busy={busy} {...rest}>
      {busy ? <Icon name="running" spin /> : icon && <Icon name={icon} />}
      {children}
    </button>
  );
}
