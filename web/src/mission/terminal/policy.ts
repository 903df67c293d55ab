/**
 * Lets xterm work under a content policy without any `unsafe-`: styles that it would write as text are set as
 * objects.
 */
import type { Terminal } from "@xterm/xterm";

function create(tag: string): HTMLElement {
  return document.createElementNS(document.documentElement.namespaceURI, tag) as HTMLElement;
}

/**
 * Calls `open`, replacing the style elements that it creates by constructed style sheets, which the policy allows.
 * xterm writes sizes and the theme's colours there, never program output. Returns a function that removes the
 * sheets.
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

/** Sets the style of a cell, for example a selected one, as an object: xterm has no option for it. */
export function setCellStyles(terminal: Terminal): void {
  const cells = (terminal as unknown as Inside)._core._renderService._renderer.value._rowFactory;
  cells._addStyle = (cell, style) => {
    cell.style.cssText += style;
  };
}
