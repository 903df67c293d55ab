/** The terminal's screen: xterm.js, read-only, without anything that the content policy refuses. */
import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { Terminal, type ITheme } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import type { Theme } from "../../shell/theme";
import { setCellStyles, withSheets } from "./policy";

const SCROLLBACK = 20_000;
// In the order of ANSI: black, red, green, yellow, blue, magenta, cyan, white; then the bright ones. Each has a
// contrast of 4.5:1 with its theme's background, in both roles.
const COLOURS: Record<Theme, readonly string[]> = {
  light: [
    ...["#17202a", "#b3261e", "#1a6b3a", "#7a4900", "#1b5cb8", "#8a2a9a", "#0b6472", "#536070"],
    ...["#414d5a", "#a31515", "#166332", "#6f4200", "#174f9e", "#77238a", "#095763", "#3c4754"],
  ],
  dark: [
    ...["#9aa7b5", "#ff9a90", "#6fcf97", "#f0b95b", "#7fb2f5", "#d9a2ec", "#6fd0dc", "#e4e9ef"],
    ...["#aab6c3", "#ffb0a8", "#8be0ae", "#f7cd80", "#a3c9fa", "#e6bdf4", "#93e0ea", "#ffffff"],
  ],
};
const NAMES = [
  ...["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"],
  ...["brightBlack", "brightRed", "brightGreen", "brightYellow", "brightBlue", "brightMagenta", "brightCyan", "brightWhite"],
] as const;

function look(theme: Theme): ITheme {
  const dark = theme === "dark";
  const ground = { background: dark ? "#0c1014" : "#f4f6f8", foreground: dark ? "#e4e9ef" : "#17202a" };
  const selection = { selectionBackground: dark ? "#2f4a6d" : "#b9d3f5", cursor: ground.background };
  return { ...ground, ...selection, ...Object.fromEntries(NAMES.map((name, at) => [name, COLOURS[theme][at]])) };
}

export class Screen {
  private readonly terminal: Terminal;
  private readonly search = new SearchAddon();
  private readonly fit = new FitAddon();
  private readonly observer = new ResizeObserver(() => this.fit.fit());
  private readonly removeSheets: () => void;
  following = true;

  constructor(place: HTMLElement, theme: Theme, onLookBack: () => void) {
    this.terminal = new Terminal({
      disableStdin: true, convertEol: false, cursorBlink: false, cursorInactiveStyle: "none", screenReaderMode: true,
      scrollback: SCROLLBACK, fontSize: 13, fontFamily: "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace",
      theme: look(theme), drawBoldTextInBrightColors: false, linkHandler: null,
    });
    this.terminal.loadAddon(this.search);
    this.terminal.loadAddon(this.fit);
    this.removeSheets = withSheets(() => this.terminal.open(place));
    setCellStyles(this.terminal);
    this.terminal.textarea?.setAttribute("aria-label", "Terminal, read-only. Page up and page down scroll it.");
    this.terminal.attachCustomKeyEventHandler((event) => this.scrollBy(event));
    this.observer.observe(place);
    const check = () => requestAnimationFrame(() => this.isAtEnd() || onLookBack());
    for (const kind of ["wheel", "pointerup", "touchmove", "keydown"]) place.addEventListener(kind, check, { passive: true });
  }

  write(text: string): void {
    this.terminal.write(text, () => {
      if (this.following) this.terminal.scrollToBottom();
    });
  }

  follow(following: boolean): void {
    this.following = following;
    if (following) this.terminal.scrollToBottom();
    else if (this.isAtEnd()) this.terminal.scrollLines(-1); // otherwise it would follow by itself
  }

  setTheme(theme: Theme): void {
    this.terminal.options.theme = look(theme);
  }

  find(text: string, back = false): boolean {
    return back ? this.search.findPrevious(text) : this.search.findNext(text);
  }

  /** Returns the selected text, or all text. */
  text(): string {
    if (this.terminal.hasSelection()) return this.terminal.getSelection();
    const buffer = this.terminal.buffer.normal;
    const lines: string[] = [];
    for (let row = 0; row < buffer.length; row += 1) {
      const line = buffer.getLine(row);
      const shown = line?.translateToString(true) ?? "";
      if (line?.isWrapped) lines.push((lines.pop() ?? "") + shown);
      else lines.push(shown);
    }
    return lines.join("\n").trimEnd();
  }

  dispose(): void {
    this.observer.disconnect();
    this.terminal.dispose();
    this.removeSheets();
  }

  private isAtEnd(): boolean {
    const { viewportY, baseY } = this.terminal.buffer.active;
    return viewportY >= baseY;
  }

  // The terminal takes no input: Tab and all shortcuts keep their meaning on the page.
  private scrollBy(event: KeyboardEvent): boolean {
    const pages = { PageUp: -1, PageDown: 1 }[event.key];
    if (event.type === "keydown" && pages !== undefined) {
      event.preventDefault();
      this.terminal.scrollPages(pages);
    }
    return false;
  }
}
