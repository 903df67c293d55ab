import type { ReactNode } from "react";
import { Dialog as AriaDialog, Heading, Modal, ModalOverlay } from "react-aria-components";

interface Props {
  title: string;
  onClose: () => void;
  children: ReactNode;
  /** A question that must be answered. */
  alert?: boolean;
  /** It holds what a person wrote: a click beside it does not close it. */
  keep?: boolean;
}

/** A modal dialog: focus stays in it, Escape closes it and gives the focus back. */
export function Dialog({ title, onClose, children, alert = false, keep = alert }: Props) {
  return (
    <ModalOverlay className="overlay" isOpen isDismissable={!keep} onOpenChange={(open) => !open && onClose()}>
      <Modal className="dialog">
        <AriaDialog role={alert ? "alertdialog" : "dialog"}>
          <Heading slot="title" level={2}>
            {title}
          </Heading>
          {children}
        </AriaDialog>
      </Modal>
    </ModalOverlay>
  );
}
