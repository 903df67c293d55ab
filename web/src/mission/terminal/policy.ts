/** Lets xterm work under a content policy without any `unsafe-`: where it would write styles as text, objects are set. */
import type { Terminal } from "@xterm/xterm";

function create(tag: string): HTMLElement {
  return document.createElementNS(document.documentElement.namespaceURI, tag) as HTMLElement;
}

/**
 * Calls `open`; what would be style elements are sheets that a script makes, which the policy allows. xterm writes sizes
 * and the theme's colours there, nothing of the output. Returns what takes them away again.
 */
export function withSheets(open: () => void): () => void {
  const sheets: CSSStyleSheet[] = [];
  const createElement = (tag: string): HTMLElement => {
    if (tag !== "style") return create(tag);
    const sheet = new CSSStyleSheet();
    sheets.push(sheet);
    const element = create("i");
    element.hidden = true;
    Object.defineProperty(element, "textContent", { set: (text: string) => sheet.replaceSync(text) });
    return element;
  };
  Object.assign(document, { createElement });
  try {
    open();
  } finally {
    Reflect.deleteProperty(document, "createElement");
  }
  document.adoptedStyleSheets.push(...sheets);
  return () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => !sheets.includes(sheet));
  };
}

interface Inside {
  _core: { _renderService: { _renderer: { value: { _rowFactory: { _addStyle: (cell: HTMLElement, style: string) => void } } } } };
}

/** Has the style of a cell, as of one that is selected, set as an object: xterm has no option for it. */
export function setCellStyles(terminal: Terminal): void {
  const cells = (terminal as unknown as Inside)._core._renderService._renderer.value._rowFactory;
  cells._addStyle = (cell, style) => {
    cell.style.cssText += style;
  };
}
