import { useId, useLayoutEffect, useRef, type MouseEvent, type ReactNode, type SyntheticEvent } from "react";
import { createPortal } from "react-dom";

interface Props {
  title: string;
  onClose: () => void;
  children: ReactNode;
  /** A question that must be answered. */
  alert?: boolean;
  /** The dialog contains typed text: a click outside does not close it. */
  keep?: boolean;
}

/**
 * A modal dialog, based on the browser's dialog element: focus stays in it, Escape closes it and returns the
 * focus. Mount it to open it, unmount it to close it.
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
      // Only a closed dialog returns the focus, a removed one does not.
      shown?.close();
      opener?.focus();
    };
  }, []);
  const cancel = (event: SyntheticEvent) => {
    event.preventDefault();
    onClose();
  };
  // A click outside the box hits the dialog element itself. A text selection that ends outside the box is not a
  // click there.
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
      // A browser closes the dialog by itself at a second Escape. After an effect that runs twice it is open again
      // by then.
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

/**
 * Returns the button of the focused menu: the menu entry that opened a dialog no longer exists when the dialog
 * returns the focus.
 */
function openerOfMenu(focused: Element | null): HTMLElement | undefined {
  const names = focused?.closest("[role=menu]")?.getAttribute("aria-labelledby") ?? "";
  return names.split(" ").flatMap((id) => document.getElementById(id) ?? []).find((named) => named.ariaHasPopup);
}
