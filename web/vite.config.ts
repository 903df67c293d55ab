import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";
import { licenses } from "./licenses.ts";

const SERVER = process.env["CHARGEHAND_URL"] ?? "http://127.0.0.1:8642";

const texts = licenses();

export default defineConfig({
  plugins: [react(), texts.pages],
  build: {
    outDir: process.env["OUT_DIR"] ?? "../src/chargehand/server/pages",
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 500,
    rolldownOptions: {
      output: {
        codeSplitting: {
          groups: [
            // Code that changes only with a package stays in the browser's cache across versions of the pages.
            { name: "react", test: /node_modules\/(react|react-dom|scheduler|use-sync-external-store)\// },
            { name: "tanstack", test: /node_modules\/@tanstack\// },
            // Nearly every page needs these: one file, because a browser sends a server only six requests at once.
            { name: "shared", test: /src\/(storage|api\/[a-z]+|design\/(Badge|Button|Icon|states))\.tsx?$/ },
            { name: "graph", test: /node_modules\/(@xyflow|@dagrejs|d3-[a-z]+|zustand|classcat)\// },
          ],
        },
      },
    },
  },
  server: { host: "127.0.0.1", proxy: { "/api": SERVER, "/health": SERVER } },
  worker: { format: "es", plugins: () => [texts.worker] },
  test: { environment: "node", include: ["*.test.ts", "src/**/*.test.ts"] },
});
