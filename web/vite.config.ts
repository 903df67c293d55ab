import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

const SERVER = process.env["CHARGEHAND_URL"] ?? "http://127.0.0.1:7391";

export default defineConfig({
  plugins: [react()],
  build: {
    outDir: process.env["OUT_DIR"] ?? "../src/chargehand/server/pages",
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 700,
  },
  server: { host: "127.0.0.1", proxy: { "/api": SERVER, "/health": SERVER } },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
});
