import { useId, useLayoutEffect, useRef, type MouseEvent, type ReactNode, type SyntheticEvent } from "react";
import { createPortal } from "react-dom";

interface Props {
  title: string;
  onClose: () => void;
  children: ReactNode;
  /** A question that must be answered. */
  alert?: boolean;
  /** It holds what a person wrote: a click beside it does not close it. */
  keep?: boolean;
}

/**
 * A modal dialog, the browser's own: focus stays in it, Escape closes it and gives the focus back. It is mounted to be
 * open and taken away to be closed.
 */
export function Dialog({ title, onClose, children, alert = false, keep = alert }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  const pressed = useRef<EventTarget | null>(null);
  useLayoutEffect(() => {
    const shown = dialog.current;
    const opener = openerOfMenu(document.activeElement);
    shown?.showModal();
    return () => {
      // Only a dialog that is closed gives the focus back, one that is taken away does not.
      shown?.close();
      opener?.focus();
    };
  }, []);
  const cancel = (event: SyntheticEvent) => {
    event.preventDefault();
    onClose();
  };
  // What is beside the box is the dialog itself; a text that is marked beyond its edge is no click there.
  const click = (event: MouseEvent) => {
    if (!keep && event.target === dialog.current && pressed.current === dialog.current) onClose();
  };
  return createPortal(
    // Keys have Escape.
    // eslint-disable-next-line jsx-a11y/click-events-have-key-events, jsx-a11y/no-noninteractive-element-interactions
    <dialog
      ref={dialog}
      className="overlay"
      role={alert ? "alertdialog" : undefined}
      aria-labelledby={heading}
      onCancel={cancel}
      // A browser closes it by itself at a second Escape; that of an effect which runs twice is open again by then.
      onClose={({ currentTarget }) => !currentTarget.open && onClose()}
      onPointerDown={({ target }) => (pressed.current = target)}
      onClick={click}
    >
      <section className="dialog">
        <h2 id={heading}>{title}</h2>
        {children}
      </section>
    </dialog>,
    document.body,
  );
}

/** Returns the button of the menu that has the focus: the entry that opened a dialog is gone when that gives it back. */
function openerOfMenu(focused: Element | null): HTMLElement | undefined {
  const names = focused?.closest("[role=menu]")?.getAttribute("aria-labelledby") ?? "";
  return names.split(" ").flatMap((id) => document.getElementById(id) ?? []).find((named) => named.ariaHasPopup);
}
