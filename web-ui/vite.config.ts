/// <reference types="vitest/config" />
// The build goes into the Python package. Names carry a hash of the contents, so that they may be cached for ever,
// and the same sources give the same files.
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vite'

const packageFolder = fileURLToPath(new URL('../src/ematix_flow/web/ui/', import.meta.url))
const server = process.env.FLOW_WEB ?? 'http://127.0.0.1:8181'

export default defineConfig({
  esbuild: { jsx: 'automatic', jsxImportSource: 'preact', legalComments: 'none' },
  build: {
    outDir: packageFolder,
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: true,
    cssCodeSplit: false,
  },
  worker: { format: 'es' },
  server: { proxy: { '/api': { target: server, changeOrigin: true } } },
  test: {
    environment: 'happy-dom',
    include: ['tests/**/*.test.{ts,tsx}'],
    pool: 'threads',
    isolate: false, // one page for all of them: to make one takes longer than the tests
    fileParallelism: false,
  },
})
