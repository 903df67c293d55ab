/** Filters a program's output for the terminal: text and text styles pass, everything else is removed. */

// Terminal strings (OSC, DCS, SOS, PM, APC) with their content, CSI sequences, two-character escapes; then every
// other control character except tab, and the marks that reorder text on the screen.
const SEQUENCE =
  /\u001b(?:[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\[([0-?]*)[ -/]*([@-~])|[ -/]*[0-~])|[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const RESET = "\u001b[0m";

interface Look {
  colour: number | null;
  back: number | null;
  bold: boolean;
  italic: boolean;
  underline: boolean;
  struck: boolean;
  inverse: boolean;
}

const PLAIN: Look = { colour: null, back: null, bold: false, italic: false, underline: false, struck: false, inverse: false };

/**
 * Returns a line for the terminal. It uses only the sixteen colours that each theme shows legibly; a coloured
 * background becomes inverse text in that colour. Nothing is hidden, dimmed or made to blink.
 */
export function terminalLine(line: string): string {
  let look = PLAIN;
  const shown = line.replace(SEQUENCE, (_, given: string | undefined, end: string | undefined) => {
    if (end !== "m" || given === undefined || !/^[\d;:]*$/.test(given)) return "";
    look = changed(look, given.split(/[;:]/).map(Number));
    return codeOf(look);
  });
  return look === PLAIN ? shown : shown + RESET;
}

function changed(before: Look, codes: number[]): Look {
  let look = before;
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at] ?? 0;
    if (code === 38 || code === 48) {
      const [colour, length] = extended(codes.slice(at + 1));
      look = { ...look, [code === 38 ? "colour" : "back"]: colour };
      at += length;
    } else look = code === 0 ? PLAIN : { ...look, ...simple(code) };
  }
  return look;
}

function simple(code: number): Partial<Look> {
  if (code >= 30 && code <= 37) return { colour: code - 30 };
  if (code >= 90 && code <= 97) return { colour: code - 82 };
  if (code >= 40 && code <= 47) return { back: code - 40 };
  if (code >= 100 && code <= 107) return { back: code - 92 };
  return (
    {
      1: { bold: true }, 3: { italic: true }, 4: { underline: true }, 7: { inverse: true }, 9: { struck: true },
      22: { bold: false }, 23: { italic: false }, 24: { underline: false }, 27: { inverse: false }, 29: { struck: false },
      39: { colour: null }, 49: { back: null },
    }[code] ?? {}
  );
}

/** Returns the nearest of the sixteen colours for a 256-colour or 24-bit code, and the number of codes used. */
function extended(codes: number[]): [colour: number | null, length: number] {
  const [kind, first = 0, second = 0, third = 0] = codes;
  if (kind === 2) return [nearest(first, second, third), 4];
  if (kind !== 5) return [null, 0];
  if (first < 16) return [first, 2];
  if (first >= 232) return [first >= 244 ? 7 : 8, 2];
  const cube = first - 16;
  return [nearest(Math.floor(cube / 36) * 51, (Math.floor(cube / 6) % 6) * 51, (cube % 6) * 51), 2];
}

function nearest(red: number, green: number, blue: number): number {
  const most = Math.max(red, green, blue);
  if (most < 48) return 0;
  const bits = [red, green, blue].map((part) => Number(part > most / 2));
  const colour = (bits[0] ?? 0) + 2 * (bits[1] ?? 0) + 4 * (bits[2] ?? 0);
  return most > 191 ? colour + 8 : colour;
}

function codeOf(look: Look): string {
  // A coloured background may be as dark as the text on it; the page's background colour on it is legible.
  const colour = look.back ?? look.colour;
  const codes = [
    0,
    look.bold ? 1 : null,
    look.italic ? 3 : null,
    look.underline ? 4 : null,
    look.inverse || look.back !== null ? 7 : null,
    look.struck ? 9 : null,
    colour === null ? null : colour < 8 ? 30 + colour : 82 + colour,
  ];
  return `\u001b[${codes.filter((code) => code !== null).join(";")}m`;
}
