// Light, dark, or what the system prefers; kept in this browser.

import { computed, effect, signal } from '@preact/signals'

export type ThemeChoice = 'auto' | 'light' | 'dark'

const KEY = 'ematix-flow-theme'
const prefersDark = window.matchMedia('(prefers-color-scheme: dark)')
const systemIsDark = signal(prefersDark.matches)
prefersDark.addEventListener('change', () => {
  systemIsDark.value = prefersDark.matches
})

export const themeChoice = signal<ThemeChoice>(storedChoice())
export const theme = computed(() => {
  if (themeChoice.value !== 'auto') return themeChoice.value
  return systemIsDark.value ? 'dark' : 'light'
})

function storedChoice(): ThemeChoice {
  const stored = localStorage.getItem(KEY)
  return stored === 'light' || stored === 'dark' ? stored : 'auto'
}

effect(() => {
  const choice = themeChoice.value
  if (choice === 'auto') delete document.documentElement.dataset.theme
  else document.documentElement.dataset.theme = choice
  localStorage.setItem(KEY, choice)
})

export function nextTheme(): void {
  const order: ThemeChoice[] = ['auto', 'light', 'dark']
  themeChoice.value = order[(order.indexOf(themeChoice.peek()) + 1) % order.length] ?? 'auto'
}
